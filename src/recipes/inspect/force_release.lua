-- KEYS     see look.lua
-- returns  1 if it deleted the lock, 0 if not; then the result of inspect.lua from just before
--
-- Reports and deletes in one step, so it reports exactly the lock that it deletes. A key that is
-- not a lock is left unchanged. The companion stays, so that the next fencing token is greater. NOT
-- safe to send twice: the second call would delete the lock of the next holder.
local released = #value > 0 and redis.call('DEL', KEYS[1]) or 0
-- Deletes the companion of a semaphore too, unless it has the fencing token of another lock.
if released == 1 and kind == 'zset' and companion[1] == '0' then
  redis.call('DEL', KEYS[2])
end
return { released, found }
