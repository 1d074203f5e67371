"""Local block files whose blocks are made when they are first needed: fetched from an object store, or decoded.

What cannot be read where it lies becomes a sparse local file, read by the one local path once its blocks are there.
``block_file.py`` has the blocks and the marks that say which are there, ``disk.py`` bounds what all of them take,
``maker.py`` is the process that makes blocks, ``asking.py`` the reader's end of it, ``addresses.py`` what an address
is, ``remote.py`` fetches, ``objects.py`` opens, ``block_store.py`` is a store over such files.

The maker imports this room without NumPy: nothing is imported here.
"""
