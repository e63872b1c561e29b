-- Tokens of the queue: who holds a claim or a lease proves it by its token, new with each. 0: claimed or leased before there were any.
-- `claims` counts how often a job was claimed: a caller without proof is believed only while nobody else can have held the job.

ALTER TABLE scheduler_job_runs ADD COLUMN claim_token BIGINT NOT NULL DEFAULT 0;

ALTER TABLE scheduler_job_runs ADD COLUMN claims INTEGER NOT NULL DEFAULT 0;

ALTER TABLE scheduler_lease_runs ADD COLUMN lease_token BIGINT NOT NULL DEFAULT 0;

UPDATE scheduler_job_runs SET claims = attempts + CASE WHEN lane IN (2, 3) THEN 1 ELSE 0 END WHERE lane IS NOT NULL;
