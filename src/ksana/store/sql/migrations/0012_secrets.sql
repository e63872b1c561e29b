-- Secrets: how each task's are stored, and callback tokens as hashes. Runs that are open keep their token as it is: it may have to be sent
-- again. `store_facts` holds what belongs to the store as a whole.

CREATE TABLE store_facts (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  value VARCHAR(1024) NOT NULL
) {table_options};

ALTER TABLE tasks ADD COLUMN sealed_by VARCHAR(16);

UPDATE tasks SET sealed_by = 'unknown' WHERE headers_json <> '{}' OR options_json LIKE '%signing_secret%';

CREATE INDEX tasks_sealed_by ON tasks (sealed_by) {where sealed_by IS NOT NULL};

UPDATE task_runs SET callback_token = {sha256 callback_token} WHERE callback_token IS NOT NULL AND open_task IS NULL
  AND LENGTH(callback_token) = 32;
