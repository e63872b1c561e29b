-- Units of the queue's capacity set aside for the connections of an instance. The pool, queue_capacity, counts them as used.

CREATE TABLE queue_allotments (
  shard BIGINT NOT NULL PRIMARY KEY,
  instance BIGINT NOT NULL,
  units BIGINT NOT NULL,
  leases BIGINT NOT NULL,
  seen_at BIGINT NOT NULL,
  era BIGINT NOT NULL
) {table_options};

{postgres ALTER TABLE queue_allotments SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
