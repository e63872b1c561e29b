-- Pages of the list of queue jobs, newest first. Each finds the numbers of a page first, from an index in its order; the rows are read by
-- number after (queue.list_jobs). Where no index has the filters, a statement looks through so many jobs at most (`looked`), and
-- `edge_…` says which one it did not get to. `:floor` and `:before` bound a span of time: numbers grow with time.

-- name: find_all
-- All jobs.
SELECT seq FROM scheduler_job_runs WHERE seq < :before ORDER BY seq DESC LIMIT :limit

-- name: find_of_state
-- Those of one state.
SELECT seq FROM scheduler_job_runs {force_index job_runs_state} WHERE {text_below state seq state}
{text_down state seq} LIMIT :limit

-- name: find_of_addon
-- Those of one addon.
SELECT seq FROM {keys_of scheduler_job_runs job_keys} {force_index job_runs_addon} WHERE {text_below addon_id seq addon_id}
{text_down addon_id seq} LIMIT :limit

-- name: find_among_all
-- Among all jobs.
-- filter job_type: AND job_type = :job_type
-- filter created_after: AND created_at > :created_after
-- filter created_before: AND created_at < :created_before
SELECT seq FROM (SELECT seq, CASE WHEN seq > 0 {filters} THEN 1 ELSE 0 END AS matches FROM scheduler_job_runs {by_primary}
  WHERE seq < :before AND seq >= :floor ORDER BY seq DESC LIMIT :look) AS looked
WHERE matches = 1 ORDER BY seq DESC LIMIT :limit

-- name: edge_among_all
-- The first that was not looked at.
SELECT seq FROM scheduler_job_runs {by_primary} WHERE seq < :before AND seq >= :floor ORDER BY seq DESC LIMIT 1 OFFSET :look

-- name: find_in_state
-- Among the jobs of one state.
-- filter addon_id: AND addon_id = :addon_id
-- filter job_type: AND job_type = :job_type
-- filter created_after: AND created_at > :created_after
-- filter created_before: AND created_at < :created_before
SELECT seq FROM (SELECT seq, CASE WHEN seq > 0 {filters} THEN 1 ELSE 0 END AS matches FROM scheduler_job_runs {force_index job_runs_state}
  WHERE {text_below state seq state} AND seq >= :floor {text_down state seq} LIMIT :look) AS looked
WHERE matches = 1 ORDER BY seq DESC LIMIT :limit

-- name: edge_in_state
-- The first that was not looked at.
SELECT seq FROM scheduler_job_runs {force_index job_runs_state}
WHERE {text_below state seq state} AND seq >= :floor {text_down state seq} LIMIT 1 OFFSET :look

-- name: find_in_addon
-- Among the jobs of one addon.
-- filter job_type: AND job_type = :job_type
-- filter created_after: AND created_at > :created_after
-- filter created_before: AND created_at < :created_before
SELECT seq FROM (SELECT seq, CASE WHEN seq > 0 {filters} THEN 1 ELSE 0 END AS matches FROM {keys_of scheduler_job_runs job_keys} {force_index job_runs_addon}
  WHERE {text_below addon_id seq addon_id} AND seq >= :floor {text_down addon_id seq} LIMIT :look) AS looked
WHERE matches = 1 ORDER BY seq DESC LIMIT :limit

-- name: edge_in_addon
-- The first that was not looked at.
SELECT seq FROM {keys_of scheduler_job_runs job_keys} {force_index job_runs_addon}
WHERE {text_below addon_id seq addon_id} AND seq >= :floor {text_down addon_id seq} LIMIT 1 OFFSET :look

-- name: count_ready_of
-- How many ready jobs of one urgency there are, counted up to a limit; from the index alone.
SELECT COUNT(*) FROM (SELECT seq FROM scheduler_job_runs {force_index job_runs_ready}
  WHERE {partial 1 ready_urgency} AND {only_of urgency ready_urgency} ORDER BY {first urgency} turn, seq LIMIT :limit) AS looked

-- name: count_scheduled
-- Scheduled jobs, the first due first, up to a limit: all of them, and by urgency.
SELECT COUNT(*), COUNT(CASE WHEN urgency = 0 THEN 1 END), COUNT(CASE WHEN urgency = 1 THEN 1 END),
  COUNT(CASE WHEN urgency = 2 THEN 1 END), COUNT(CASE WHEN urgency = 3 THEN 1 END)
FROM (SELECT urgency FROM scheduler_job_runs {force_index job_runs_scheduled}
  WHERE {partial 0 scheduled_at} ORDER BY {either due_at scheduled_at}, seq LIMIT :limit) AS looked

-- name: count_of_state
-- Jobs of one state, newest first, up to a limit: all of them, and by urgency.
SELECT COUNT(*), COUNT(CASE WHEN urgency = 0 THEN 1 END), COUNT(CASE WHEN urgency = 1 THEN 1 END),
  COUNT(CASE WHEN urgency = 2 THEN 1 END), COUNT(CASE WHEN urgency = 3 THEN 1 END)
FROM (SELECT urgency FROM scheduler_job_runs {force_index job_runs_state}
  WHERE {text_below state seq state} {text_down state seq} LIMIT :limit) AS looked

-- name: job_span
-- The least and the greatest number. Asked for in one query, SQLite would read every row for them.
SELECT (SELECT MIN(seq) FROM scheduler_job_runs), (SELECT MAX(seq) FROM scheduler_job_runs)

-- name: job_from
-- The first job at or after a number, and when it was submitted: a probe of the search by time.
SELECT seq, created_at FROM scheduler_job_runs WHERE seq >= :from_id ORDER BY seq LIMIT 1
