"""Pure rules: states, schedules, decisions, templates. No I/O, no clock: time is handed in."""
