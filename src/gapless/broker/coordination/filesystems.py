"""Which file system a folder is on: locks and shared memory of network file systems are not to be trusted."""

from __future__ import annotations

import re
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    [
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "afs",
            "9p",
            "ceph",
            "glusterfs",
            "lustre",
            "gpfs",
            "beegfs",
        ),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs2", "ncpfs"),
    ]
)


def network_file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The kind of network file system that an existing folder is on; None for a disk, or if nobody knows."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = str(folder.resolve())
    best, kind = "", None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), left.split(" ")[4])
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= len(best):  # a later mount hides an earlier one
            best, kind = point, right.split(" ")[0]
    return kind if kind in NETWORK_FILE_SYSTEMS else None
