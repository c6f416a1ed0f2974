"""Real servers for tests, drills and benchmarks: started on free ports, never left behind."""
