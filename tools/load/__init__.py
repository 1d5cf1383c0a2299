"""Mixed traffic on the whole service while its database and its broker are killed: `make load`, docs/load.md."""
