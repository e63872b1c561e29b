-- Become the owner of a node or session if there is none, or it is us.
-- KEYS[1] owner key
-- ARGV[1] our instance id
-- ARGV[2] time to live, ms
-- Answers the owner.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then
  return owner
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
