-- KEYS[1]  the read key: a STRING that exists while readers hold the lock
-- KEYS[2]  the write key: a STRING, the writer's token, or 1 for a writer of the article
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- returns  1 if we are the writer, 0 if someone else holds the lock
--
-- Safe to send twice: our token is recognised, and its lease never shortened. A refused attempt
-- writes nothing. The writer is released by `wire/release.lua`.

local reader, writer = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
local lease = tonumber(ARGV[2])
-- The lock is ours: this attempt is a repeat. It moves the end only forward.
if writer == ARGV[1] then
  local left = redis.call('PTTL', KEYS[2])
  if left >= 0 and left < lease then
    redis.call('PEXPIRE', KEYS[2], lease)
  end
elseif reader or writer then
  return 0
else
  redis.call('SET', KEYS[2], ARGV[1], 'PX', lease)
end
redis.call('GET', KEYS[2]) -- a write ends the tracking of a key, a read starts it again
return 1
