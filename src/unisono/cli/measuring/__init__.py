"""Commands that measure: scenarios in virtual time, the figures of papers, benchmarks."""
