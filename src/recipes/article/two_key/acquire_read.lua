-- KEYS[1]  the read key, see readers.lua
-- KEYS[2]  the write key: a STRING, the writer's token, or 1 if it is not ours
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds
-- returns  1 if we are among the readers, 0 if there is a writer
--
-- Safe to send twice: our own token is recognised. Never shortens, neither our own lease nor that
-- of other readers; a read lock without an end, which none of the scripts makes, is left as it is.
-- A refused attempt writes nothing.

-- There is a writer, ours or the article's.
if redis.call('GET', KEYS[2]) then
  return 0
end

-- Nobody reads, or somebody does. A read key without an end, which none of the scripts makes, is a
-- reader for ever. It is left as it is, and we are in as long as it is there.
local readers = {}
if value then
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then
    return 1
  end
  -- Our list, or readers of the article. These are entered under the empty token with the end that
  -- the key has, so that our own end never shortens theirs.
  readers = listed() or { [''] = now + left }
end
readers[ARGV[1]] = math.max(readers[ARGV[1]] or 0, now + ARGV[2])
store(readers)
redis.call('GET', KEYS[1]) -- a write ends the tracking of a key, a read starts it again
return 1
