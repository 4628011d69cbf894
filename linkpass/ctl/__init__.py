"""linkpassctl: a file per verb."""
