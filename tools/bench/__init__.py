"""`make bench`: measures the figures that docs/benchmarks.md explains, each against its goal, on real parts."""
