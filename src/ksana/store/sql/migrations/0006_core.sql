-- Answers are remembered per caller, so their scope is longer. Migrations are recorded with a checksum; those applied
-- before this one have none.

{widen idempotency_keys scope VARCHAR(160)};

ALTER TABLE schema_migrations ADD COLUMN checksum CHAR(64);
