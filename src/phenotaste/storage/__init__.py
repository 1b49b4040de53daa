"""Files: atomic writes, tensors with a manifest, memory-mapped arrays, locks."""
