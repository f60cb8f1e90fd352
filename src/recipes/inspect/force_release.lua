-- KEYS     see look.lua
-- returns  1 if it deleted the lock, 0 if not; then the result of inspect.lua from just before
--
-- Reports and deletes in one step, so it reports exactly the lock that it deletes. A key that is
-- not a lock is left unchanged. The companion stays, so that the next fencing token is greater. NOT
-- safe to send twice: the second call would delete the lock of the next holder.

-- A string is a mutex or a lock of the book. A hash is a read-write lock, or a reentrant lock of
-- one owner and a count. A sorted set with a value is a semaphore.
local function is_lock()
  if kind ~= 'hash' then
    return kind == 'string' or kind == 'zset' and #value > 0
  end
  for i = 1, #value, 2 do
    if value[i] == 'kind' and value[i + 1] == 'rw' then
      return true
    end
  end
  return #value == 2 and string.find(value[2], '^%d+$') and tonumber(value[2]) > 0
end

local released = is_lock() and redis.call('DEL', KEYS[1]) or 0
-- Deletes the companion of a semaphore too, unless it has the fencing token of another lock.
if released == 1 and kind == 'zset' and companion[1] == '0' then
  redis.call('DEL', KEYS[2])
end
return { released, found }
