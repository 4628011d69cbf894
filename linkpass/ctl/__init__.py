"""linkpassctl: the command line of a running agent. A file for each verb; `__main__` puts them together."""
