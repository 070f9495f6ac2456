"""Memory of the test's own process."""

import os
from pathlib import Path


def resident() -> int:
    """Bytes of memory in use now; 0 on systems without /proc."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0
