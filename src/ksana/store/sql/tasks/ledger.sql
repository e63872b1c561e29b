-- The ledger: which slots have a run. Every read goes by the unique index of slots and is bounded.

-- name: list_task_ids
-- Tasks by id, deleted ones included.
SELECT id FROM tasks WHERE id > :after ORDER BY id LIMIT :limit

-- name: count_slots
-- Runs of the slots in a span by status and, of skipped ones, reason, among the first so many in the order of slots.
SELECT status, why, COUNT(*), MAX(slot_at) FROM (
  SELECT slot_at, status, CASE WHEN status = 'SKIPPED' THEN COALESCE(reason, '') ELSE '' END AS why
  FROM task_runs {force_index task_runs_slot} WHERE task_id = :task_id AND slot_at > :after AND slot_at <= :until
  ORDER BY slot_at LIMIT :limit) AS looked
GROUP BY status, why

-- name: newest_slot
-- The latest slot in a span that has a run.
SELECT slot_at FROM task_runs {force_index task_runs_slot} WHERE task_id = :task_id AND slot_at > :after AND slot_at <= :until
ORDER BY slot_at DESC LIMIT 1

-- name: count_fired
-- Runs of later slots that are not skipped, among so many. A task does not count those of a backfill as fired.
SELECT COUNT(*) FROM (
  SELECT status, trigger_kind FROM task_runs {force_index task_runs_slot} WHERE task_id = :task_id AND slot_at > :after
  ORDER BY slot_at LIMIT :limit
  ) AS looked WHERE status <> 'SKIPPED' AND trigger_kind <> 'backfill'

-- name: list_filled
-- Those among some tasks that have a run of a slot in a span.
SELECT id FROM tasks WHERE id {in task_ids} AND EXISTS (
  SELECT 1 FROM task_runs WHERE task_runs.task_id = tasks.id AND slot_at > :after AND slot_at <= :until)
