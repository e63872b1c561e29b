-- Take messages of a dead instance's inbox, if we are the one that drains it.
-- KEYS[1] inbox
-- KEYS[2] drainer
-- ARGV[1] our instance id
-- ARGV[2] group
-- ARGV[3] how many at most
-- Answers false if another one drains it, else the messages: pending ones first, then unread.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return false
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
local claimed = redis.call('XAUTOCLAIM', KEYS[1], ARGV[2], ARGV[1], 0, '0-0', 'COUNT', ARGV[3])
local found = claimed[2]
local room = tonumber(ARGV[3]) - #found
if room > 0 then
  local read = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[1], 'COUNT', room,
    'STREAMS', KEYS[1], '>')
  if read then
    for _, entry in ipairs(read[1][2]) do
      found[#found + 1] = entry
    end
  end
end
return found
