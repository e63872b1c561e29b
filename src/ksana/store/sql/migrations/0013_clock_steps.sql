-- Steps of the store's clock that firing has seen. Ahead: the time between the two instants was skipped. Back: the time between them was
-- lived by a clock that was ahead, and seen_at is where it was set to.

CREATE TABLE clock_steps (
  id {id},
  is_back SMALLINT NOT NULL,
  from_at BIGINT NOT NULL,
  to_at BIGINT NOT NULL,
  seen_at BIGINT NOT NULL
) {table_options};

CREATE INDEX clock_steps_end ON clock_steps (to_at);
