-- Take messages again that were handed out and then left alone.
-- KEYS[1] inbox
-- ARGV[1] group
-- ARGV[2] consumer that takes them
-- ARGV[3] how long a message must have been left alone, ms
-- ARGV[4] how many at most
-- Answers the messages, each as its id, its fields and how often it has been handed out.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
local found, cursor = {}, '0-0'
repeat
  local claimed = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], cursor,
    'COUNT', ARGV[4] - #found)
  cursor = claimed[1]
  for _, entry in ipairs(claimed[2]) do
    local seen = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    found[#found + 1] = {entry[1], entry[2], seen[1] and seen[1][4] or 1}
  end
until cursor == '0-0' or #found >= tonumber(ARGV[4])
return found
