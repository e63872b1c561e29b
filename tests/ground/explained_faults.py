"""Faults of `tests.ground.code` that no test can notice, each with its reason in a line. A fault is
named as the tool prints it; one that no longer exists must leave this list."""

EXPLAINED: dict[str, str] = {
    "ksana.domain.cron.CronExpr.__init__: 24 -> 25": "no field has an hour 24",
    "ksana.domain.cron.CronExpr.next_local: seconds & -seconds -> seconds | -seconds": "x | -x is -(x & -x), and both have the same bit_length",
    "ksana.domain.cron.CronExpr.next_local: minutes & -minutes -> minutes | -minutes": "x | -x is -(x & -x), and both have the same bit_length",
    "ksana.domain.cron.CronExpr.next_local: days & -days -> days | -days": "x | -x is -(x & -x), and both have the same bit_length",
    "ksana.domain.cron._lowest: bits & -bits -> bits | -bits": "x | -x is -(x & -x), and both have the same bit_length",
    "ksana.domain.cron.CronExpr.count_local: until <= start -> until < start": "of an empty span the sums below are 0 too",
    "ksana.domain.cron.CronExpr.count_local: 1 -> 2": "a day after the calendar's last has no bit",
    "ksana.domain.cron.CronExpr._fill_block: _LAST_DAY + 1 -> _LAST_DAY - 1": "days are filled by whole months, and the last one begins before either",
    "ksana.domain.cron.CronExpr._fill_block: 1 -> 0": "days are filled by whole months, and the last one begins before either",
    "ksana.domain.cron.CronExpr._fill_block: day < until -> day <= until": "a month that begins at the end lies beyond the mask below",
    "ksana.domain.cron.CronExpr._fill_block: shift >= 0 -> shift > 0": "a shift by 0 is the same either way",
    "ksana.domain.cron.CronExpr._fill_block: 0 -> 1 (#2)": "a shift by 0 is the same either way",
    "ksana.domain.cron.CronExpr._fill_block: 1 -> 0 (#7)": "month 0 has no days and is followed by January",
    "ksana.domain.cron._minute_steps: 1439 -> 1440": "minute 1440 is in no expression and has been set already",
    "ksana.domain.cron_fields.DayRule.month_bits: 2 -> 1 (#2)": "bit 0 is dropped by whoever asks",
    "ksana.domain.cron_fields.DayRule._date_bits: 0 -> 1": "bit 0 is no day and is masked",
    "ksana.domain.cron_fields.DayRule._weekday_bits: 127 -> 128": "a short cut: the sum below is the same for all seven days",
    "ksana.domain.cron_fields.DayRule._weekday_bits: 1 -> 2 (#6)": "bit 0 is no day and is masked",
    "ksana.domain.cron_fields._read_weekday: 0 -> 1": "the pattern has matched digits only",
    "ksana.domain.cron_fields._read_weekday: 0 -> -1": "the pattern has matched digits only",
    "ksana.domain.cron_fields._read_weekday: 7 -> 8": "the day is taken modulo 7 again where it is used",
    "ksana.domain.cron_fields._read_weekday: 7 -> 8 (#2)": "the day is taken modulo 7 again where it is used",
    "ksana.domain.cron_fields._read_list: 1 -> 0": "a short cut: the sum beside it is the same for a step of 1",
    "ksana.domain.cron_fields._read_item: 0 -> -1": "either is refused as a step",
}
