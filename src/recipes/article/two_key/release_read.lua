-- KEYS[1]  the read key, see two_key.lua
-- ARGV[1]  our token
-- returns  1 if we were among the readers until now, 0 if not
--
-- The key is deleted by the last reader only. Where a program on the article's scripts has written 1 over our tokens,
-- nobody of ours deletes it.

-- Are we on the list? If a reader of the article has come since, the list is gone: we are told that it was not ours any
-- more, and the key stays for that reader.
local readers = value and listed()
if not (readers and readers[ARGV[1]]) then
  return 0
end
-- We go. The key goes with the last reader only.
readers[ARGV[1]] = nil
store(readers)
return 1
