-- Become the home of a node job in place of a former one.
-- KEYS[1] job
-- ARGV[1] our instance id
-- ARGV[2] the former home
-- ARGV[3] states that end a job, each between commas
-- ARGV[4] time to live, ms
-- Answers 1, or 0 if it has another home, ended or is gone.
local found = redis.call('HMGET', KEYS[1], 'state', 'home')
local state, home = found[1], found[2]
if not state or string.find(ARGV[3], ',' .. state .. ',', 1, true) then
  return 0
end
if home ~= ARGV[1] and home ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'home', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
