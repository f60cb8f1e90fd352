-- KEYS, and how they are read: see look.lua
-- returns  1 if it was deleted, 0 if not, and what inspect.lua returns, of the moment before
--
-- What it tells of is what it deletes, since both are one step; what is no lock of any kind, it
-- leaves as it is. The companion stays: the next fencing token has to be greater than the last. NOT
-- safe to send twice: the second would take the lock away from whoever has come since.

-- A string is a lock of a mutex or of the book; a hash is one of readers and writers, or of one
-- owner and a count.
local function is_lock()
  if kind ~= 'hash' then
    return kind == 'string'
  end
  for i = 1, #value, 2 do
    if value[i] == 'kind' and value[i + 1] == 'rw' then
      return true
    end
  end
  return #value == 2 and string.find(value[2], '^%d+$') and tonumber(value[2]) > 0
end

return { is_lock() and redis.call('DEL', KEYS[1]) or 0, found }
