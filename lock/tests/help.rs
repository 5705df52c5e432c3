//! What the program prints: its help, its manual page and its tables, as snapshots.
