# The first Python of the system that is new enough; $python and $seen.
python= seen=
for candidate in /usr/bin/python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 /usr/bin/python3.10 /usr/bin/python3.9; do
    found=$("$candidate" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if "$candidate" -I -S -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$needed'.split('.'))))"; then
        python=$candidate
        break
    fi
    seen="$seen $candidate is $found;"
done
seen=${seen%;}
refuse() { echo "$*" >&2; exit 1; }
