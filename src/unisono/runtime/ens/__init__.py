"""The services beneath: one contract (`adapter`), one module per broker. Import the adapter you run."""
