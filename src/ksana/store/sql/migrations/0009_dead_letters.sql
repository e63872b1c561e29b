-- Dead letters of every surface: work that failed for good and that nobody has replayed or dismissed yet. A row goes when it is settled.
-- error_key is the group of the error; 0: it died before errors were grouped.

CREATE TABLE dead_letters (
  id {id},
  surface VARCHAR(16) NOT NULL,
  entity_id VARCHAR(64) NOT NULL,
  source VARCHAR(128) NOT NULL,
  status VARCHAR(16) NOT NULL,
  error VARCHAR(1024) NOT NULL,
  error_key BIGINT NOT NULL,
  died_at BIGINT NOT NULL
) {table_options};

CREATE UNIQUE INDEX dead_letters_entity ON dead_letters (surface, entity_id);
CREATE INDEX dead_letters_age ON dead_letters (surface, died_at, id);
CREATE INDEX dead_letters_error ON dead_letters (surface, error_key, died_at, id);
CREATE INDEX dead_letters_source ON dead_letters (surface, source, died_at, id);

{insert_ignore} dead_letters (surface, entity_id, source, status, error, error_key, died_at)
SELECT 'governance', job_id, object_type, status, COALESCE(last_error, ''), 0, COALESCE(finished_at, updated_at)
FROM governance_jobs WHERE status = 'dead_letter' ORDER BY seq {on_conflict_ignore};
