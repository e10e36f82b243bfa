"""The checks of a node, one file each; a file's `CHECK` is its check. (I/O)"""
