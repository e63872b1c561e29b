-- The core's statements: events, instances, locks, rollups, keys, commit marks.

-- name: append_events
-- Append a row: one fact, or a pack of several about one entity.
INSERT INTO event_packs (ts, entity_type, entity_id, event_type, data_json)
VALUES ({same ts}, :entity_type, :entity_id, :event_type, :data_json)

-- name: list_events
-- Rows of events from a number on, in their order.
-- filter entity_type: AND (entity_type = :entity_type OR (event_type = '' AND data_json LIKE :with_entity_type))
-- filter entity_id: AND entity_id = :entity_id
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs
WHERE id >= :low {filters}
ORDER BY id
LIMIT :limit

-- name: list_events_back
-- The same, the newest first.
-- filter entity_type: AND (entity_type = :entity_type OR (event_type = '' AND data_json LIKE :with_entity_type))
-- filter entity_id: AND entity_id = :entity_id
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs
WHERE id >= :low {filters}
ORDER BY id DESC
LIMIT :limit

-- name: list_entity_events
-- Rows of one entity from a number on, in their order.
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs {force_index scheduler_events_entity}
WHERE entity_id = :entity_id AND entity_type = :entity_type AND id >= :low {filters}
ORDER BY entity_id, entity_type, id
LIMIT :limit

-- name: list_entity_events_back
-- The same, the newest first.
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs {force_index scheduler_events_entity}
WHERE entity_id = :entity_id AND entity_type = :entity_type AND id >= :low {filters}
ORDER BY entity_id DESC, entity_type DESC, id DESC
LIMIT :limit

-- name: list_dated_events
-- Rows of one of several instants that have an entity's id, in their order. By `id + 0`: a database would walk through the log for it.
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs {force_index scheduler_events_entity}
WHERE entity_id {in ids} AND entity_type = :entity_type AND id >= :low AND data_json LIKE :with_entity_id {filters}
ORDER BY id + 0
LIMIT :limit

-- name: list_dated_events_back
-- The same, the newest first.
-- filter event_type: AND (event_type = :event_type OR (event_type = '' AND data_json LIKE :with_event_type))
-- filter high: AND id <= :high
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- large: data_json
SELECT id, ts, entity_type, entity_id, event_type, data_json
FROM event_packs {force_index scheduler_events_entity}
WHERE entity_id {in ids} AND entity_type = :entity_type AND id >= :low AND data_json LIKE :with_entity_id {filters}
ORDER BY id + 0 DESC
LIMIT :limit

-- name: latest_event_row
-- The number of the newest row, 0 in an empty log.
SELECT COALESCE(MAX(id), 0) FROM event_packs

-- name: get_event_row
-- One row.
SELECT id, ts, entity_type, entity_id, event_type, data_json FROM event_packs WHERE id = :id

-- name: first_event_after
-- The row that follows a number.
SELECT id, ts FROM event_packs WHERE id > :after ORDER BY id LIMIT 1

-- name: find_gap
-- The number in front of the first gap after a number, if a young row follows the gap.
SELECT before_id FROM (
  SELECT id, ts, COALESCE(LAG(id) OVER (ORDER BY id), :after) AS before_id
  FROM event_packs WHERE id > :after
) AS pairs
WHERE id <> before_id + 1 AND ts > :since ORDER BY id LIMIT 1

-- name: list_oldest_events
-- The rows with the lowest numbers after one; they grow with time, so this reads one end of the table.
SELECT id, ts FROM event_packs WHERE id > :after ORDER BY id LIMIT :limit

-- name: delete_events_to
-- Remove a span of old rows; the age is checked again.
DELETE FROM event_packs WHERE id >= :first AND id <= :last AND ts < :before

-- name: insert_clock_step
-- A step of the clock.
INSERT INTO clock_steps (is_back, from_at, to_at, seen_at) VALUES (:is_back, :from_at, :to_at, :seen_at)

-- name: list_clock_steps
-- Steps that concern time after an instant.
SELECT is_back, from_at, to_at, seen_at FROM clock_steps WHERE to_at > :at ORDER BY to_at LIMIT 1000

-- name: list_old_clock_steps
-- Steps that concern only time before.
SELECT id FROM clock_steps WHERE to_at < :before ORDER BY to_at LIMIT :limit

-- name: delete_clock_step
-- Forget a step. It never changes: one that was found over is over.
DELETE FROM clock_steps WHERE id = :id

-- name: last_sign_of_life
-- When an instance last gave a sign of life, and until when the longest lease runs.
SELECT MAX(alive_at), MAX(CASE WHEN stopped_at IS NULL THEN lease_until END) FROM instances

-- name: end_other_instances
-- On a store that admits one server, every other instance is dead for certain: end its lease now. Its last sign of life may
-- lie in the future, if the clock was set back since.
UPDATE instances SET lease_until = CASE WHEN alive_at < {now} THEN alive_at ELSE {now} END
WHERE id <> :id AND stopped_at IS NULL AND (lease_until > alive_at OR lease_until > {now})

-- name: end_instance
-- An instance that is dead for certain: end its lease now. Guard: not stopped.
UPDATE instances SET lease_until = CASE WHEN alive_at < {now} THEN alive_at ELSE {now} END
WHERE id = :id AND stopped_at IS NULL AND (lease_until > alive_at OR lease_until > {now})

-- name: insert_instance
-- Enter a new instance.
INSERT INTO instances (id, host, version, started_at, alive_at, lease_until, stopped_at, outage_from, begun_to)
VALUES (:id, :host, :version, :started_at, :alive_at, :lease_until, :stopped_at, :outage_from, 0)

-- name: note_begun
-- An instance is about to begin runs up to an id. Guard: it has not said so of a later one.
UPDATE instances SET begun_to = :run_id WHERE id = :id AND begun_to < :run_id

-- name: begun_to
-- Up to which run an instance may have begun what it held.
SELECT begun_to FROM instances WHERE id = :id

-- name: renew_instance
-- Sign of life. Guard: not stopped. By the store's clock, in the statement.
UPDATE instances SET alive_at = {now}, lease_until = {now} + :lease_us WHERE id = :id AND stopped_at IS NULL

-- name: renew_draining
-- The lease of an instance that takes no more work: its last sign of life stays. Guard: not stopped.
UPDATE instances SET lease_until = {now} + :lease_us WHERE id = :id AND stopped_at IS NULL

-- name: stop_instance
-- An orderly end: the lease ends with it. Its last sign of life was when it stopped to take work.
UPDATE instances SET stopped_at = {now}, lease_until = {now} WHERE id = :id AND stopped_at IS NULL

-- name: list_instances
-- All known instances, newest first.
SELECT id, host, version, started_at, alive_at, lease_until, stopped_at, outage_from
FROM instances ORDER BY started_at DESC, id

-- name: list_outages
-- Spans in which nobody was alive. One that ends later than now was dated by a clock that was ahead.
SELECT outage_from, started_at FROM instances
WHERE outage_from IS NOT NULL AND started_at > :since AND started_at <= {now} ORDER BY started_at

-- name: list_old_instances
-- Instances that ended long ago.
SELECT id FROM instances WHERE lease_until < :before AND alive_at < :before ORDER BY alive_at, id LIMIT :limit

-- name: delete_instance
-- Forget one. Guard: it gave no sign of life meanwhile.
DELETE FROM instances WHERE id = :id AND lease_until < :before AND alive_at < :before

-- name: extend_lock
-- Take or extend a lock that exists. Guard: ours or expired, by the store's clock.
UPDATE scheduler_locks SET owner_id = :owner_id, expires_at = {now} + :ttl_us
WHERE lock_name = :lock_name AND (owner_id = :owner_id OR expires_at <= {now})

-- name: enter_lock
-- Enter a lock nobody has named before.
{insert_ignore} scheduler_locks (lock_name, owner_id, expires_at) VALUES (:lock_name, :owner_id, {now} + :ttl_us)
{on_conflict_ignore}

-- name: drop_lock
-- Give a lock back. Guard: ours.
DELETE FROM scheduler_locks WHERE lock_name = :lock_name AND owner_id = :owner_id

-- name: add_to_bucket
-- Add to one bucket's count.
INSERT INTO rollups (metric, entry, minutes, bucket_at, n, total)
VALUES (:metric, :entry, :minutes, :bucket_at, :count, :total)
{upsert metric, minutes, bucket_at, entry} n = rollups.n + {excluded n}, total = rollups.total + {excluded total}

-- name: list_buckets
-- One metric's minutes, oldest first, each in the shares of those who counted.
SELECT bucket_at, entry, n, total FROM rollups
WHERE metric = :metric AND minutes = 1 AND bucket_at >= :since AND bucket_at < :until
ORDER BY bucket_at

-- name: list_bucket_shares
-- Shares of minutes that are over, held: nobody adds to them until they are folded.
SELECT metric, minutes, bucket_at, entry, n, total FROM rollups
WHERE bucket_at >= :since AND bucket_at < :before AND entry LIKE :shares ORDER BY bucket_at LIMIT :limit {skip_locked}

-- name: list_old_buckets
-- The oldest buckets, ended before an instant.
SELECT metric, minutes, bucket_at, entry FROM rollups
WHERE bucket_at < :before AND bucket_at + minutes * 60000000 <= :before ORDER BY bucket_at LIMIT :limit

-- name: delete_bucket
-- Forget one bucket.
DELETE FROM rollups WHERE metric = :metric AND minutes = :minutes AND bucket_at = :bucket_at AND entry = :entry

-- name: insert_key
-- A new API key; only the hash of its secret.
INSERT INTO api_keys (id, name, secret_hash, scopes, created_at) VALUES (:id, :name, :secret_hash, :scopes, :at)

-- name: list_keys
-- All keys, oldest first.
SELECT id, name, secret_hash, scopes, created_at, revoked_at, last_used_at FROM api_keys ORDER BY created_at, id

-- name: revoke_key
-- Revoke. Guard: still live.
UPDATE api_keys SET revoked_at = {now} WHERE id = :id AND revoked_at IS NULL

-- name: touch_key
-- Remember when a key was last used.
UPDATE api_keys SET last_used_at = {now} WHERE id = :id

-- name: enter_mark
-- A writer's row for commit marks.
{insert_ignore} commit_marks (writer, mark, at) VALUES (:writer, :mark, :at) {on_conflict_ignore}

-- name: set_mark
-- Mark this batch, in its own transaction.
UPDATE commit_marks SET mark = :mark, at = :at WHERE writer = :writer

-- name: get_mark
-- Which batch of the writer was committed last; waits for a transaction still at it.
SELECT mark FROM commit_marks WHERE writer = :writer {for_update}

-- name: list_old_marks
-- Writers that have not committed for long.
SELECT writer FROM commit_marks WHERE at < :before ORDER BY at, writer LIMIT :limit

-- name: delete_mark
-- Forget a writer. Guard: it has not committed meanwhile. One that comes back enters its row anew.
DELETE FROM commit_marks WHERE writer = :writer AND at < :before

-- name: insert_fact
-- Note a fact about the store. Guard: not known yet.
{insert_ignore} store_facts (name, value) VALUES (:name, :value) {on_conflict_ignore}

-- name: note_fact
-- Note a fact that may change.
INSERT INTO store_facts (name, value) VALUES (:name, :value)
{upsert name} value = {excluded value}

-- name: get_fact
-- A fact about the store.
SELECT value FROM store_facts WHERE name = :name

-- name: add_to_row_counts
-- Rows that came or went, in the connection's own share.
INSERT INTO row_counts (kind, entry, shard, n) VALUES (:kind, :entry, :shard, :n)
{upsert kind, entry, shard} n = row_counts.n + {excluded n}

-- name: list_count_shares
-- Shares of connections, held unless they are being written.
SELECT kind, entry, shard, n FROM row_counts WHERE shard > :above LIMIT :limit {skip_locked}

-- name: delete_count_share
-- Remove a share. Guard: none, the row is held.
DELETE FROM row_counts WHERE kind = :kind AND entry = :entry AND shard = :shard

-- name: sum_row_counts
-- How many rows of a kind there are, by entry.
SELECT entry, SUM(n) FROM row_counts WHERE kind = :kind GROUP BY entry
