"""Speed and memory of phenotaste compared with alternatives; see README.md in this folder."""
