#!/bin/sh
# Installs ftrun from the wheels beside this file, without a network: ./install.sh [FOLDER]. The default is ~/ftrun. Called again it upgrades.
# The folder gets an environment of its own and modulefiles/ftrun/VERSION for `module load`; to remove ftrun, remove the folder.
set -eu
# shellcheck disable=SC1007
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-$HOME/ftrun}
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac

refuse() { printf 'ftrun: %s\n' "$*" >&2; exit 1; }

python= seen=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    found=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
    seen="$seen $candidate is $found;"
done
[ -n "$python" ] || refuse "it needs Python 3.11 or newer with venv:${seen:- there is no ${PYTHON:-python3};} name one by PYTHON=/path/to/python3.12 (nodes need only 3.9)"
series=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
ls "$here"/wheels/*-cp"$series"-* >/dev/null 2>&1 || refuse "this archive has no wheels for Python $("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'): name another by PYTHON=..."
"$python" -m venv "$folder" || refuse "$folder could not be made"
"$folder/bin/python" -m pip install -q --disable-pip-version-check --no-index --find-links "$here/wheels" --upgrade --force-reinstall ftrun ||
    refuse "it could not be installed in $folder"
version=$("$folder/bin/python" -c 'from importlib.metadata import version; print(version("ftrun"))')
mkdir -p "$folder/modulefiles/ftrun"
cat >"$folder/modulefiles/ftrun/$version" <<END
#%Module1.0
module-whatis "ftrun $version: looks after training runs on Slurm"
conflict ftrun
prepend-path PATH $folder/bin
prepend-path MANPATH $folder/share/man
END
echo "ftrun $version is in $folder: export PATH=$folder/bin:\$PATH, or module use $folder/modulefiles && module load ftrun"
