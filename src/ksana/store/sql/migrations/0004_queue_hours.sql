-- The queue's counts of past minutes, an hour in one row; see store/sql/hours.py. A chore moves them over from `rollups`.

CREATE TABLE queue_hours (
  metric VARCHAR(64) NOT NULL,
  hour_at BIGINT NOT NULL,
  sums {blob},
  PRIMARY KEY (metric, hour_at)
) {table_options};

CREATE INDEX queue_hours_age ON queue_hours (hour_at);

-- Counts of 5 and of 30 minutes are no longer read or written; the same counts stand there by the minute.
DELETE FROM rollups WHERE minutes > 1;
