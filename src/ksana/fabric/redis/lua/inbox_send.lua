-- Put a message into an inbox that exists and has room.
-- KEYS[1] inbox
-- ARGV[1] length at which it counts as full
-- ARGV[2] length to trim to; never reached by unread messages, because the former is smaller
-- ARGV[3] the message
-- Answers 1: sent, 0: full, -1: there is no such inbox.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return -1
end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'm', ARGV[3])
return 1
