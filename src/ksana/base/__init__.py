"""The ground floor: instants, clocks, ids, durations and errors. No I/O, no rules."""
