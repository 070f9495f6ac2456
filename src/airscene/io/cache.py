"""The on-disk cache of programs that JAX compiles."""

import os
from pathlib import Path


def use_compilation_cache() -> None:
    """Cache compiled programs on disk, in a default folder unless the user has set one."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "airscene" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
