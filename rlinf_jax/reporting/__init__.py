"""What a run shows and leaves behind: progress, metrics, curves, videos."""
