"""Maps FILE and touches its first FIRST bytes; after the release as many more, and so on."""

import mmap
import os
import sys

import handshake

path, step = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_RDONLY)
size = os.fstat(fd).st_size
view = mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ)
view.madvise(mmap.MADV_RANDOM)  # no fault-around: exactly the touched pages are mapped
touched = 0
while True:
    for offset in range(touched, touched + step, mmap.PAGESIZE):
        view[offset]
    touched += step
    os.lseek(fd, touched, os.SEEK_SET)
    handshake.ready(touched)
    handshake.hold()
