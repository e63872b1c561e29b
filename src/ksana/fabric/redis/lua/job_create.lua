-- Write a new node job, unless it is there.
-- KEYS[1] job
-- ARGV[1] time to live, ms
-- ARGV[2..] fields and values
-- Answers whether it is new (1 or 0), its state and its attempt.
local is_new = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  is_new = 1
end
local found = redis.call('HMGET', KEYS[1], 'state', 'attempt')
return {is_new, found[1], found[2]}
