-- KEYS[1]  the read key, see readers.lua
-- KEYS[2]  the write key: a STRING, the writer's token, or 1 for a writer of the article
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- returns  1 if we are a reader, 0 if there is a writer
--
-- Safe to send twice: our token is recognised. Never shortens our lease or another reader's. A
-- refused attempt writes nothing.

-- A writer holds the lock, ours or the article's.
if redis.call('GET', KEYS[2]) then
  return 0
end

-- A read key without an end, which no script here writes, is a reader forever. It is left
-- unchanged, and we are a reader as long as it exists.
local readers = {}
if value then
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then
    return 1
  end
  -- Our list, or readers of the article. These are listed under the empty token with the key's end,
  -- so that our end never shortens theirs.
  readers = listed() or { [''] = now + left }
end
readers[ARGV[1]] = math.max(readers[ARGV[1]] or 0, now + ARGV[2])
store(readers)
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
