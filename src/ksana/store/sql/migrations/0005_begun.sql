-- How far an instance has begun what it holds. Instances entered before this never said so: NULL.

ALTER TABLE instances ADD COLUMN begun_to BIGINT;
