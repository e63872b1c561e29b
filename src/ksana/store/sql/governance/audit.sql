-- The audit: entries in chains, the chains' ends, anchors.

-- name: take_chain
-- The first chain that no other writer has taken, held until the end of the transaction.
SELECT chain, seq, hash FROM audit_chains ORDER BY chain LIMIT 1 {skip_locked}

-- name: wait_for_chain
-- One chain, when its writer is done.
SELECT chain, seq, hash FROM audit_chains WHERE chain = :chain {for_update}

-- name: append
-- One entry in its place.
INSERT INTO audit_events (place, id, event_type, actor, object_type, object_id, before_json, after_json, reason,
  evidence_refs, job_id, correlation_id, decision_trace_id, ts, prev_hash, hash)
VALUES (:place, :id, :event_type, :actor, :object_type, :object_id, :before_json, :after_json, :reason,
  :evidence_refs, :job_id, :correlation_id, :decision_trace_id, :ts, :prev_hash, :hash)

-- name: set_head
-- The new end of a chain. Guard: the end it was read with.
UPDATE audit_chains SET seq = :seq, hash = :hash WHERE chain = :chain AND seq = :old_seq

-- name: find_entry
-- One entry.
SELECT place, id, event_type, actor, object_type, object_id, before_json, after_json, reason, evidence_refs, job_id,
  correlation_id, decision_trace_id, ts, prev_hash, hash
FROM audit_events WHERE place = :place

-- name: list_entries
-- Entries, newest first.
-- filter event_type: AND event_type = :event_type
-- filter actor: AND actor = :actor
-- filter object_type: AND object_type = :object_type
-- filter object_id: AND object_id = :object_id
-- filter job_id: AND job_id = :job_id
-- filter since: AND ts >= :since
-- filter until: AND ts < :until
-- filter before: AND (ts < :before OR (ts = :before AND place < :before_place))
-- large: before_json, after_json, evidence_refs
SELECT place, id, event_type, actor, object_type, object_id, before_json, after_json, reason, evidence_refs, job_id,
  correlation_id, decision_trace_id, ts, prev_hash, hash
FROM audit_events WHERE ts > 0 {filters}
ORDER BY ts DESC, place DESC LIMIT :limit

-- name: list_chain
-- Entries of one chain, in their order.
-- large: before_json, after_json, evidence_refs
SELECT place, id, event_type, actor, object_type, object_id, before_json, after_json, reason, evidence_refs, job_id,
  correlation_id, decision_trace_id, ts, prev_hash, hash
FROM audit_events WHERE place > :after AND place <= :until ORDER BY place LIMIT :limit

-- name: list_heads
-- Every chain that has, or had, entries.
SELECT chain, seq, hash, base_seq, base_hash FROM audit_chains WHERE seq > 0 ORDER BY chain

-- name: mark
-- How many entries were ever written.
SELECT SUM(seq) FROM audit_chains

-- name: list_anchors
-- Anchors in their order.
SELECT number, at, heads_json, prev_hash, hash FROM audit_anchors WHERE number > :after ORDER BY number LIMIT :limit

-- name: latest_anchor
-- The newest anchor.
SELECT number, at, heads_json, prev_hash, hash FROM audit_anchors ORDER BY number DESC LIMIT 1

-- name: add_anchor
-- An anchor, unless its number is taken.
{insert_ignore} audit_anchors (number, at, heads_json, prev_hash, hash) VALUES (:number, :at, :heads_json, :prev_hash, :hash)
{on_conflict_ignore}

-- name: oldest_entries
-- The first entries of a chain after those that were removed.
SELECT place, ts, hash FROM audit_events WHERE place > :after AND place <= :until ORDER BY place LIMIT :limit

-- name: set_base
-- Where a chain begins now. Guard: where it began before.
UPDATE audit_chains SET base_seq = :base_seq, base_hash = :base_hash WHERE chain = :chain AND base_seq = :old_base

-- name: delete_entries
-- Remove the entries before the beginning.
DELETE FROM audit_events WHERE place > :after AND place <= :until

-- name: list_old_anchors
-- Anchors older than an instant, in their order.
SELECT number, hash FROM audit_anchors WHERE at < :before ORDER BY number LIMIT :limit

-- name: delete_anchors
-- Remove anchors up to one.
DELETE FROM audit_anchors WHERE number <= :until
