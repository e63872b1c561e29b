-- Runs that are done by a queue job: a note for each job that ended and whose run has not been told.

CREATE TABLE handover_ends (
  id {id},
  job_id CHAR(36) NOT NULL
) {table_options};
