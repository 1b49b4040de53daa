"""What long runs share: the run folder, worker processes, progress reports and machine resources."""
