"""Speed and memory of phenotaste beside the peers a user would pick; see README.md in this folder."""
