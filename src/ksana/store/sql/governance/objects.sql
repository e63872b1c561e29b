-- Objects under governance. A row is changed by who holds it, and by its version.

-- name: find_object
-- One object.
SELECT object_type, object_id, status, epistemic_state, unknown_type, risk_tier, impact_tier, auto_verify_budget, verify_count,
  uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action, weight, half_life_us, reinforcement_count,
  last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at
FROM governance_objects WHERE object_key = :object_key

-- name: read_objects
-- Objects by their keys.
SELECT object_type, object_id, status, epistemic_state, unknown_type, risk_tier, impact_tier, auto_verify_budget, verify_count,
  uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action, weight, half_life_us, reinforcement_count,
  last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at
FROM governance_objects WHERE object_key {in keys}

-- name: read_objects_of_tier
-- Those among them of one tier of risk.
SELECT object_type, object_id, status, epistemic_state, unknown_type, risk_tier, impact_tier, auto_verify_budget, verify_count,
  uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action, weight, half_life_us, reinforcement_count,
  last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at
FROM governance_objects WHERE object_key {in keys} AND risk_tier = :risk_tier

-- name: lock_objects
-- The same, held.
SELECT object_type, object_id, status, epistemic_state, unknown_type, risk_tier, impact_tier, auto_verify_budget, verify_count,
  uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action, weight, half_life_us, reinforcement_count,
  last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at
FROM governance_objects WHERE object_key {in keys} {for_update}

-- name: find_keys
-- A page's keys, in the order of their bytes.
SELECT object_key FROM governance_objects {force_primary} WHERE {bytewise object_key} > :floor AND {bytewise object_key} < :top
ORDER BY {bytewise object_key} LIMIT :limit

-- name: find_keys_of_status
-- The same, of one status.
SELECT object_key FROM governance_objects {force_index governance_objects_status} WHERE {text_between status object_key}
{text_up status object_key} LIMIT :limit

-- name: list_objects
-- Objects by their keys, in the order of a page.
-- large: evidence_refs, data
SELECT object_key, object_type, object_id, status, epistemic_state, unknown_type, risk_tier, impact_tier, auto_verify_budget, verify_count,
  uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action, weight, half_life_us, reinforcement_count,
  last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at
FROM governance_objects {force_primary} WHERE object_key {in keys} ORDER BY {bytewise object_key}

-- name: insert_object
-- Enter an object unless it is there.
{insert_ignore} governance_objects (object_key, object_type, object_id, status, epistemic_state, unknown_type, risk_tier,
  impact_tier, auto_verify_budget, verify_count, uncertainty_ttl_us, review_due_at, expires_at, next_action_at, next_action,
  weight, half_life_us, reinforcement_count, last_reinforced_at, decayed_at, evidence_refs, data, version, created_at, updated_at)
VALUES (:object_key, :object_type, :object_id, :status, :epistemic_state, :unknown_type, :risk_tier,
  :impact_tier, :auto_verify_budget, :verify_count, :uncertainty_ttl_us, :review_due_at, :expires_at, :next_action_at, :next_action,
  :weight, :half_life_us, :reinforcement_count, :last_reinforced_at, :decayed_at, :evidence_refs, :data, :version, :created_at,
  :updated_at)
{on_conflict_ignore}

-- name: update_object
-- Change an object. Guard: the version and the status of the decision.
UPDATE governance_objects SET status = :status, epistemic_state = :epistemic_state, unknown_type = :unknown_type,
  risk_tier = :risk_tier, impact_tier = :impact_tier, auto_verify_budget = :auto_verify_budget, verify_count = :verify_count,
  uncertainty_ttl_us = :uncertainty_ttl_us, review_due_at = :review_due_at, expires_at = :expires_at,
  next_action_at = :next_action_at, next_action = :next_action, weight = :weight, half_life_us = :half_life_us,
  reinforcement_count = :reinforcement_count, last_reinforced_at = :last_reinforced_at, decayed_at = :decayed_at,
  evidence_refs = :evidence_refs, data = :data, version = :version, updated_at = :updated_at
WHERE object_key = :object_key AND version = :old_version AND status = :old_status
