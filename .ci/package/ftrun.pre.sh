[ -n "$python" ] || refuse "ftrun: it needs Python $needed or newer in /usr/bin:${seen:- there is none}; nothing was installed"
