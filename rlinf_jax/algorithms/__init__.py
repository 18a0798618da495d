"""Training algorithms: macro flows over stages, their losses arguments."""
